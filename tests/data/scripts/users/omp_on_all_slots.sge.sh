#!/bin/bash
#$ -N als
#$ -cwd
#$ -pe smp 4
#$ -l h_rt=8:00:00,h_vmem=4G
export OMP_NUM_THREADS=`nproc`
python als.py
