"""How fast real devices run ops: op classes, efficiency models, and the parameters fitted to measurements."""
