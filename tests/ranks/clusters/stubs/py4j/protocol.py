"""What a barrier stage ends with whose executors are gone."""


class Py4JJavaError(Exception):
    pass
