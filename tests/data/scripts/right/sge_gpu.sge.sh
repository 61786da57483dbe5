#!/bin/bash -l
#$ -cwd
#$ -pe smp 4
#$ -l gpu=1
#$ -l h_rt=12:00:00
#$ -l h_vmem=8G
python train.py --device cuda
