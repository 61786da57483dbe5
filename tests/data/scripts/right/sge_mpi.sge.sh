#!/bin/bash -l
#$ -cwd
#$ -pe mpi 32
#$ -l h_rt=12:00:00
#$ -l mem=2G
mpirun -np $NSLOTS python -m mpi4py solve.py
