"""Processes and devices: launchers, rendezvous, collectives, replicas of the model. Knows nothing of training."""
