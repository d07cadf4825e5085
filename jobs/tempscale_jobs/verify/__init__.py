"""`tempscale verify`: whether stored vectors are a model's, how many are not, and why."""
