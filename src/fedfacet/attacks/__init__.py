"""Membership inference: how sure an attacker is, from what a model says of samples, that these were trained on."""
