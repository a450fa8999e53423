"""Pictures and films of worlds: what their renderers share."""
