"""Measurements a user can run: is it the same text, and is it faster?"""
