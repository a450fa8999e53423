"""Games between players: matches, ratings, leagues, pools of opponents, and worlds with an opponent inside."""
