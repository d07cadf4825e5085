"""`tempscale diagnose`: the causes of collapse in a model, layer by layer."""
