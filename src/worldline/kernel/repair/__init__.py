"""Inputs and runs that do not go on: what is done about them, without their code."""
