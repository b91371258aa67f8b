"""As much of Ray as examples/clusters/ray uses: a task is a process of this machine."""
import multiprocessing

from . import util

_fork = multiprocessing.get_context("fork")


class exceptions:
    """What a task ends with that Ray has killed, or that has raised an exception."""
    class RayError(Exception):
        pass


class _Task:
    def __init__(self, function, arguments):
        self.queue = _fork.SimpleQueue()
        self.process = _fork.Process(target=self.run, args=(function, arguments))
        self.process.start()

    def run(self, function, arguments):
        try:
            self.queue.put(function(*arguments))
        except Exception as error:
            self.queue.put(exceptions.RayError(f"{type(error).__name__}: {error}"))


class _Remote:
    def __init__(self, function):
        self.function = function

    def remote(self, *arguments):
        return _Task(self.function, arguments)


def init():
    pass


def remote(num_cpus, num_gpus, max_retries, scheduling_strategy):
    assert num_cpus > 0 and num_gpus >= 0 and max_retries == 0
    assert 0 <= scheduling_strategy.index < len(scheduling_strategy.group.bundles)
    return _Remote


def get(what):
    if isinstance(what, list):
        return [get(one) for one in what]
    if isinstance(what, _Task):
        value = what.queue.get()
        if isinstance(value, exceptions.RayError):
            raise value
        return value
    return what
