"""Parts that all reports share: numbers as text, charts, the page, and tables on the terminal."""
