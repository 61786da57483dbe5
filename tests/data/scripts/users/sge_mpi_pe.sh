#!/bin/bash
#$ -N mf
#$ -cwd
#$ -pe mpi 16
#$ -l h_rt=12:00:00
#$ -l h_vmem=2G
python mf.py --threads 16
