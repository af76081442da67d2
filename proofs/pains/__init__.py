"""What users of agent frameworks suffer, as scenarios that judge by behaviour alone.

python -m proofs.pains                 # this project, and the control
python -m proofs.pains create_agent    # another framework, in an environment of its own
"""
