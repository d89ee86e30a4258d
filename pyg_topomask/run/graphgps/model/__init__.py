"""From a config to modules: encoders, convolutions, attention, the parameter budget."""
