#!/bin/bash
#$ -S /bin/bash
#$ -cwd
#$ -j y
#$ -N gan
#$ -pe mpi 12
#$ -l h_rt=24:00:00
#$ -l h_vmem=4G

source ~/envs/gan/bin/activate
python gan.py --threads 12
