#!/usr/bin/env -S python3 -B
"""The largest circle of files that call each other, in each folder.

cycles.py [--build DIR] [--list] [--dot]: --list prints every circle, --dot all of them for Graphviz.
"""
import sys

import house


def print_dot(circles, graph):
    print('digraph circles {')
    for (a, b), symbols in sorted(graph.edges.items()):
        if any(a in circle and b in circle for circle in circles):
            print(f'  "{a}" -> "{b}" [label="{" ".join(sorted(symbols))}"];')
    print('}')


def main():
    dot = '--dot' in sys.argv
    sys.argv = [word for word in sys.argv if word != '--dot']
    options = house.arguments(__doc__)
    graph = house.Graph(options.build)
    values, every = {}, []
    for folder in house.PRODUCT:
        files = {file for file in graph.files if file.split('/')[0] == folder}
        if not files:
            continue
        circles = house.components(files, graph.edges)
        values[folder] = len(circles[0]) if circles else 1
        every += circles if options.list or dot else circles[:1]
    if dot:
        print_dot(every, graph)
        return 0
    for circle in every:
        print(f'a circle of {len(circle)} files: ' + ' '.join(circle))
    return house.check(options, values)


if __name__ == '__main__':
    sys.exit(main())
