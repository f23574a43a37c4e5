"""Three small algorithms that the interface must fit: on rollouts, on replay, and with gradients that travel."""
