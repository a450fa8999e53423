"""The original simulator, RocketSim, as another backend of Rocket's worlds."""
