"""A first training on a CPU, and the small models it starts from."""
