"""One thin module a framework: it names fields, `layouts` finds the responses, `Tap` sends and weighs."""
