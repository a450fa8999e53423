"""Players against each other: opponents, matches, ratings, pools, and worlds with an opponent inside."""
