"""Processes and devices: launchers, rendezvous, collectives, model replicas. Independent of
training code.
"""
