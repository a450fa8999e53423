"""The original simulator, RocketSim, as another way to make the ticks of Rocket's worlds."""
