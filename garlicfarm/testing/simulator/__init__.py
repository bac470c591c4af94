"""The consensus core and the publishing rules in a simulated network (``make sim``)."""
