"""CartPole, batched: the smallest world, and the pattern for your own."""
