"""Who owns what: the ownership plan, the operator table, operators on shards, their programs."""
