"""Watch a running program or job from outside, and change nothing in it."""
