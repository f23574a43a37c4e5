"""The engine's side of an algorithm's object: what of it is published and kept, its gradients, its own update."""
