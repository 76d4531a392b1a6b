"""Write an embedding for other programs."""
