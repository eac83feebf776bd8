"""The surroundings of a script: its streams, and flags that other programs call otherwise."""
