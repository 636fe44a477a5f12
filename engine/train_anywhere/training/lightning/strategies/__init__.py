"""Lightning strategies: `choose` maps the name in `strategy=` to one, `hooks` has what a run does in all of them."""
