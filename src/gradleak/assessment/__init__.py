"""Assessment: `gradleak audit`, a study whose next cells depend on the results of the last ones.

request    what the user asked for, and how an audit's folder is told from that of another one
texts      the user's rows made ready: sampled, cut to what the model takes, split for training
subject    a first look at model, data and the client's updates
ladders    defenses in units that mean something, each a ladder of strengths
plan       what the budget allows, and the least that is needed
trials     one setting: its cells, and what they found
clock      what is spent of the budget, and what may still begin
runner     trials run update by update, while there is time
sweep      the order of trials: own setup, batch sizes, defenses by bisection, training, confirmation, knowledge
confirmation   the defense that is advised, tried on more sentences and against better attackers
verdict    the verdict, the recommendation and the gate
document   the record that audit.json holds
recorded   the record of a study's file, for `gradleak report STUDY.db`
run        all of it, in an audit's folder
"""
