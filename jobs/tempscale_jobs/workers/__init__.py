"""Ray: the session, the actors with a model, and the machines that they run on."""
