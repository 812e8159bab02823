"""What the alarms are worth: the corpus of real runs as series, rivals, scores, and the tables made of them."""
