#!/usr/bin/env -S python3 -B
"""What the gates of this folder share: sources, the graph of calls, ceilings.

As a program it runs every gate: house.py [--build DIR] [--lower]
"""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CEILINGS = HERE / 'ceilings.txt'
PRODUCT = ('base', 'collectives', 'offload', 'checkpoint', 'zero', 'tools', 'examples')
GATES = ('cycles', 'floors', 'names', 'modes', 'unused', 'prefixes', 'lengths', 'asserts', 'sentences')


def arguments(about):
    """The options of a gate."""
    parser = argparse.ArgumentParser(description=about.strip().splitlines()[0])
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build-ci',
                        help='build folder with all objects (default: build-ci)')
    parser.add_argument('--list', action='store_true', help='print all that is counted')
    parser.add_argument('--lower', action='store_true',
                        help='write values that are better than their ceilings into ceilings.txt')
    parser.add_argument('--partial', action='store_true',
                        help='the build lacks some sources: a value may be below its ceiling')
    return parser.parse_args()


# Sources.

def sources(*suffixes, folders=PRODUCT):
    """Paths of the product's files that end so, relative to the repository."""
    found = (path for folder in folders for path in (ROOT / folder).rglob('*')
             if path.suffix in suffixes and path.is_file())
    return sorted(str(path.relative_to(ROOT)) for path in found)


def read(path):
    return (ROOT / path).read_text(encoding='utf-8')


def folder_of(path):
    """zero/step for zero/step/outcome.c, zero for zero/zero.h."""
    return '/'.join(pathlib.PurePath(path).parts[:-1][:2])


TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(?s:/\*.*?\*/)|//[^\n]*')


def without_comments(text):
    """The same lines, with a blank in the place of each comment."""
    def kept(match):
        token = match.group()
        return token if token[0] in '"\'' else ' ' + '\n' * token.count('\n')
    return TOKEN.sub(kept, text)


def functions(text):
    """(name, first line, lines between the braces) of each function; clang-format puts the braces
    into the first column."""
    lines = text.split('\n')
    opened = None
    for number, line in enumerate(lines):
        if line.startswith('{'):
            opened = number
        elif line.startswith('}') and opened is not None:
            start = opened - 1
            while start > 0 and lines[start][:1] in ' \t':
                start -= 1
            name = re.search(r'(\w+)\s*\(', ' '.join(lines[start:opened]))
            yield name.group(1) if name else '?', opened + 1, number - opened - 1
            opened = None


# The graph of calls between files, as the linker sees it.

class Graph:
    """defined: symbol -> files; used: symbol -> files; edges: (file, file) -> symbols."""

    def __init__(self, build):
        self.files = set()
        self.defined = collections.defaultdict(set)
        self.used = collections.defaultdict(set)
        self.edges = collections.defaultdict(set)
        of_target = collections.defaultdict(set)  # (target, symbol) -> files
        uses = set()
        objects = product_objects(build)
        self.files.update(objects.values())
        for name, symbol, kind in symbols(build, objects):
            target, file = name.split('.dir/')[0], objects[name]
            if kind in 'Uvw':
                uses.add((target, file, symbol))
            elif kind.isupper():
                self.defined[symbol].add(file)
                of_target[target, symbol].add(file)
        for target, file, symbol in uses:
            # Two programs may define a symbol each: the target's own goes first.
            for other in (of_target.get((target, symbol)) or self.defined.get(symbol, ())):
                self.used[symbol].add(file)
                if other != file:
                    self.edges[file, other].add(symbol)


def product_objects(build):
    """Object -> source, both as relative paths; test programs have some of the product's sources,
    too, which do not count."""
    try:
        commands = json.loads((build / 'compile_commands.json').read_text())
    except OSError as error:
        sys.exit(f'{error}; name a build folder with --build')
    objects = {}
    for command in commands:
        source = pathlib.Path(command['file']).resolve()
        name = re.search(r' -o (\S+)', command['command']).group(1)
        if source.is_relative_to(ROOT) and not name.startswith('tests/'):
            objects[name] = str(source.relative_to(ROOT))
    objects = {name: file for name, file in objects.items() if file.split('/')[0] in PRODUCT}
    missing = [name for name in objects if not (build / name).exists()]
    if missing or not objects:
        sys.exit(f'{build}: {len(missing)} of {len(objects)} objects are missing, such as '
                 f'{missing[:1]}: build all targets first')
    return objects


def symbols(build, objects):
    """(object, symbol, kind) of all external symbols."""
    run = subprocess.run(['nm', '-A', '-P', '-g', *objects], cwd=build, check=True,
                         capture_output=True, text=True)
    for line in run.stdout.splitlines():
        name, symbol, kind = line.split()[:3]
        yield name.rstrip(':'), symbol, kind


def components(nodes, edges):
    """The strongly connected components (Tarjan) with more than one node, largest first."""
    after = collections.defaultdict(list)
    for a, b in edges:
        if a in nodes and b in nodes:
            after[a].append(b)
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(root):
        todo = [(root, iter(after[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while todo:
            node, rest = todo[-1]
            child = next(rest, None)
            if child is None:
                todo.pop()
                if todo:
                    low[todo[-1][0]] = min(low[todo[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    found.append(sorted(stack[at:]))
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
            elif child not in index:
                index[child] = low[child] = len(index)
                stack.append(child)
                on_stack.add(child)
                todo.append((child, iter(after[child])))
            elif child in on_stack:
                low[node] = min(low[node], index[child])

    for node in sorted(nodes):
        if node not in index:
            visit(node)
    return sorted((c for c in found if len(c) > 1), key=lambda c: (-len(c), c))


# Ceilings.

def read_ceilings():
    lines = CEILINGS.read_text().splitlines() if CEILINGS.exists() else []
    rows = (line.split() for line in lines if line and not line.startswith('#'))
    return {name: int(value) for name, value in rows}


def write_ceiling(name, value):
    lines = CEILINGS.read_text().splitlines()
    for at, line in enumerate(lines):
        if line.split()[:1] == [name]:
            lines[at] = f'{name} {value}'
            break
    else:
        lines.append(f'{name} {value}')
    CEILINGS.write_text('\n'.join(lines) + '\n')


def check(options, values, at_least=False):
    """Compares the values with their ceilings (floors, if at_least): the exit status of a gate."""
    gate = pathlib.Path(sys.argv[0]).stem
    ceilings = read_ceilings()
    kind = 'floor' if at_least else 'ceiling'
    status = 0
    for name, value in values.items():
        name = f'{gate}.{name}'
        ceiling = ceilings.pop(name, None)
        if ceiling is None:
            verdict = f'no {kind}: write "{name} {value}" into ceilings.txt'
        elif value == ceiling:
            verdict = ''
        elif (value > ceiling) != at_least:
            verdict = f'worse than its {kind} {ceiling}; --list prints what counts'
        elif options.partial:
            verdict = ''
        else:
            verdict = f'better than its {kind} {ceiling}: {"raise" if at_least else "lower"} it to {value}'
        if verdict and options.lower and not verdict.startswith('worse'):
            write_ceiling(name, value)
            verdict = f'the {kind} is {value} now'
        elif verdict:
            status = 1
        print(f'{name} {value}' + (f': {verdict}' if verdict else ''))
    for name in (name for name in ceilings if name.split('.')[0] == gate and not options.partial):
        print(f'{name}: in ceilings.txt, but nothing is measured under this name: take it out')
        status = 1
    return status


if __name__ == '__main__':
    sys.exit(max(subprocess.run([HERE / f'{gate}.py', *sys.argv[1:]], check=False).returncode
                 for gate in GATES))
