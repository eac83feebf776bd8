"""Write a data set in the format of another program."""
