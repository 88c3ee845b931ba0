def version():
    return 90100
