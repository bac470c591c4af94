# Asks the program, which fits the libraries that it has; fish loads this at the first Tab.
_GARLICFARM_COMPLETE=fish_source garlicfarm | source
