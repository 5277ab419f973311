"""Training around a parameter server: how soon each policy reaches a loss, beside Flower."""
