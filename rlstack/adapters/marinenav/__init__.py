"""MarineNav's published agents (arXiv 2412.09466): their files as policies and as native agents, and the way back."""
