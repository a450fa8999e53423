"""Pictures and films of worlds: canvas, text, animations, files."""
