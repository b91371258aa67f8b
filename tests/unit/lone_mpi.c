// A library that has MPI's first function, as a process sees it that has loaded an MPI.
#pragma GCC visibility push(default) // as a library has it
int MPI_Init(int *count, char ***arguments);
#pragma GCC visibility pop

int MPI_Init(int *count, char ***arguments)
{
    (void)count;
    (void)arguments;
    return 1;
}
