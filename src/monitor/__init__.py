"""What a run is doing: small files in its folder, RUN/monitor/, that other programs read while it trains."""
