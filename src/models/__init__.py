"""The same models, by the same names and with the same number of parameters, for both frameworks."""
