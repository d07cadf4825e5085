"""Ray: the session, the actors that hold a model, and the machines they run on."""
