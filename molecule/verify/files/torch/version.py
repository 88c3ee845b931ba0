cuda = "12.4"
