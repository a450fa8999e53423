"""MarineNav: multi-vessel navigation among obstacles, traffic and currents."""
