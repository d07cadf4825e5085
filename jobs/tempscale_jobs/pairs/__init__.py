"""`tempscale pairs`: SOCM of explicit pairs of texts."""
