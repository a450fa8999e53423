"""What corrections for data of other policies are worth, on batched CartPole."""
