#!/bin/bash
#$ -cwd -V
#$ -N mpijob
#$ -pe mpi 48
#$ -l h_rt=03:59:59
#$ -l h_vmem=4G
module load openmpi python
mpirun -np $NSLOTS python mpi_solve.py
