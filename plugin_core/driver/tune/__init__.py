"""The search step: Ray Tune over trials that are runs of their own.

What a trial does while it trains is in `driver.train`.
"""
